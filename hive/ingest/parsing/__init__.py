"""Bytes become a title and sections.

Runs only in fetch children: what is read here is foreign and may be hostile. ``reader.read`` chooses the
parser. Every failure is a ``ParseFailure`` with a stable code; nothing else comes out.
"""
