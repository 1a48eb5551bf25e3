"""The dashboard: its pages as they are, and a session for who looks at them in a browser.

It asks the public API of the administration, as everybody may; nothing here answers for rules.
"""
