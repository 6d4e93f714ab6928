"""How pages and commands of this package write numbers and untrusted text."""

from ascend_model.text import change, figures, markdown, plain, value

__all__ = ["change", "figures", "markdown", "plain", "value"]
