"""Insert and delete tokens in rows of token ids, and label the edits (DiffCSE section 5)."""

import torch


def insert_masks(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, before: torch.Tensor, mask_token_id: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Insert a mask token before each token that `before` `(B, T)` of bool marks. It is false at padding.

    Returns:
        Ids, attention mask and labels (1 where a token was inserted), `(B, T + most insertions of a row)`.

    Example:
        >>> ids, ones, labels = insert_masks(
        ...     torch.tensor([[5, 6, 7]]), torch.ones(1, 3), torch.tensor([[False, True, True]]), mask_token_id=0
        ... )
        >>> ids, labels
        (tensor([[5, 0, 6, 0, 7]]), tensor([[0, 1, 0, 1, 0]]))
    """
    shift = before.cumsum(1)  # how far each token moves, (B, T)
    length = input_ids.shape[1]
    width = length + int(before.sum(1).amax())
    places = torch.arange(length, device=input_ids.device) + shift
    # The padding of rows with fewer insertions.
    behind = torch.arange(width, device=input_ids.device) >= length + shift[:, -1:]
    longer = (len(input_ids), width)
    inserted = (~behind).long().scatter(1, places, 0)
    attention = attention_mask.new_zeros(longer).scatter(1, places, attention_mask) + inserted.to(attention_mask.dtype)
    ids = input_ids.new_full(longer, mask_token_id).scatter(1, places, input_ids)
    return ids.masked_fill(attention == 0, 0), attention, inserted


def delete_tokens(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, deleted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Delete the tokens that `deleted` `(B, T)` of bool marks, and close the gaps.

    Returns:
        Ids, attention mask and labels (1 after a deleted token), `(B, T)`, id 0 at padding.

    Example:
        >>> ids, ones, labels = delete_tokens(
        ...     torch.tensor([[5, 6, 7, 8]]), torch.ones(1, 4), torch.tensor([[False, True, True, False]])
        ... )
        >>> ids, labels
        (tensor([[5, 8, 0, 0]]), tensor([[0, 1, 0, 0]]))
    """
    kept_first = deleted.long().argsort(dim=1, stable=True)
    attention = (attention_mask * ~deleted).gather(1, kept_first)
    after_deleted = torch.nn.functional.pad(deleted[:, :-1], (1, 0)).long().gather(1, kept_first)
    real = attention.bool()
    return input_ids.gather(1, kept_first).where(real, 0), attention, after_deleted.where(real, 0)
