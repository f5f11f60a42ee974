"""Fine-tune a chat model with a private `SFTTrainer`: MODEL DATA.jsonl OUTPUT."""

import sys

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig

from userdp import UserLevelSFTTrainer

name, data, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)
dataset = load_dataset("json", data_files=data, split="train")

args = SFTConfig(output, max_length=64, max_steps=20, assistant_only_loss=True, bf16=False)
trainer = UserLevelSFTTrainer(
    model,
    args,
    train_dataset=dataset,
    processing_class=tokenizer,
    user_column="author",
    plan="plan.json",
    store="people",
)
trainer.train()
trainer.save_model()
