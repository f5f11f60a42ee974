import pytest
import torch
import transformers


@pytest.fixture(autouse=True, scope="session")
def _quiet():
    """One thread, as tiny models run faster so; and no bars."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    yield
    torch.set_num_threads(threads)
