"""Text for a terminal that it cannot be driven by."""


def clean(text: str) -> str:
    """Without control characters: a document's title must not be able to drive the terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)
