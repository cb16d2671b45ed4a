"""A device that measured itself at half of its equals or less was busy, until its steps say the same."""

import math

import pytest

from farflung.coordinator.planning.equals import Equals


def cpu(tflops, description="AMD EPYC 7763, 2 cores", cores=2):
    return {"kind": "cpu", "description": description, "cores": cores, "tflops": tflops}


def test_one_noisy_measurement_of_equal_machines_makes_no_factor_of_three():
    equals = Equals({"a": cpu(0.081), "b": cpu(0.029)})
    assert equals.measured("a") == equals.measured("b") == 0.081


def test_less_than_a_factor_of_two_is_believed():
    equals = Equals({"a": cpu(0.08), "b": cpu(0.05)})
    assert (equals.measured("a"), equals.measured("b")) == (0.08, 0.05)


@pytest.mark.parametrize("other", [cpu(0.029, "Raspberry Pi, 4 cores"), cpu(0.029, cores=1)])
def test_other_devices_are_what_they_say(other):
    equals = Equals({"a": cpu(0.081), "b": other})
    assert equals.measured("b") == 0.029


def test_a_boast_lifts_no_two_others():
    equals = Equals({"a": cpu(0.08), "b": cpu(0.03), "c": cpu(0.09), "liar": cpu(1000.0)})
    assert (equals.measured("b"), equals.measured("a"), equals.measured("liar")) == (0.09, 0.08, 1000.0)


def test_a_node_that_comes_again_on_another_machine():
    equals = Equals({"a": cpu(0.08), "b": cpu(0.03)})
    equals.joined("a", cpu(5.0, "another"))
    assert (equals.measured("a"), equals.measured("b")) == (5.0, 0.03)
    equals.joined("b", cpu(0.07))
    assert equals.measured("b") == 0.07


@pytest.mark.parametrize("said", [None, 0.0, -1.0, math.nan, math.inf])
def test_nothing_is_made_of_nothing(said):
    equals = Equals({"a": cpu(said), "b": cpu(0.03)})
    assert (equals.measured("a"), equals.measured("b"), equals.measured("nobody")) == (0.0, 0.03, 0.0)
