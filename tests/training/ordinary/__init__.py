"""Scripts as people write them: own modules and losses, tutorials of PyTorch, PEFT and others.

Each trains two private steps and saves. None may be refused without a reason that its author would
accept, end in a trace of ours, or be charged if it fails at its first step.
"""
