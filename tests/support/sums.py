"""S of a group of real nodes, from their vectors."""


def s_of(trainings):
    """S of a group from its members' vectors: sum p (x + feedback) + server errors, float64."""
    total = 0.0
    for training in trainings:
        (exchange,) = training.exchanges.values()
        section = exchange.section
        own = section.x.double() + (0.0 if section.feedback is None else section.feedback.double())
        total = total + own * exchange.share
        for index, error in exchange.errors.items():
            part = exchange.plan.parts[index]
            total[part.start : part.stop] += error.double()
    return total
