"""Train a language model inside the unmodified agent harness that it will be deployed in."""

__version__ = "0.1.0"
