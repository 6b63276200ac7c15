"""What a client sends, as what a model reads: elements decoded, with prompts, as features."""
