"""The static website: the table of all models, the cards, and the documentation.

May import `index`, `entries`, `listing` and `method_texts` of the cards; nothing in the cards imports it.
"""
