"""Where farflung runs: this machine, an emulated WAN, images and recipes."""
