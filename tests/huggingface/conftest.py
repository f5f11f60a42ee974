import transformers

transformers.logging.disable_progress_bar()
