"""Fine-tune a language model with `transformers.Trainer`: MODEL DATA.jsonl OUTPUT."""

import sys

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

name, data, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)
dataset = load_dataset("json", data_files=data, split="train")
dataset = dataset.map(lambda row: tokenizer(row["text"] + tokenizer.eos_token), desc="tokens")

args = TrainingArguments(output, learning_rate=1e-3, max_steps=20, save_steps=10, logging_steps=5)
trainer = Trainer(
    model,
    args,
    train_dataset=dataset.remove_columns("text"),
    processing_class=tokenizer,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
trainer.save_model()
