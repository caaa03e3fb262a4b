"""Progress where there is no terminal."""

import time

from csezoo.training.environment import progress_bar


def test_progress_is_plain_lines_with_the_time_left(capsys):
    bar = progress_bar(400, "counting")
    bar.start_t = bar.last_print_t = time.time() - 10  # ten seconds have passed
    bar.set_postfix(loss="0.5", refresh=False)
    bar.update(100)
    bar.update()  # too soon for another line
    bar.close()
    assert capsys.readouterr().err == "counting: 100 of 400, 00:30 left, loss=0.5\n"


def test_short_work_shows_nothing(capsys):
    with progress_bar(3, "counting") as bar:
        for _ in range(3):
            bar.update()
    assert capsys.readouterr().err == ""
