"""Jobs to start from, with the code that they need: `shakespeare.toml`, `digits.toml`, `finetune.toml`."""
