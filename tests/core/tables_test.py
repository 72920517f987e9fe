import csv
import io

from vit_jax.core.tables import as_text, csv_text


def test_words_that_begin_like_formulas_stay_text():
    """OWASP's list for CSV injection; negative numbers are numbers."""
    words = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx"]
    rows = [*words, -1, -1.5, "a=b", ""]
    read = next(csv.reader(io.StringIO(csv_text([rows]), newline="")))
    assert read == [*("'" + word for word in words), "-1", "-1.5", "a=b", ""]
    assert as_text(-2.0) == -2.0
    assert as_text("\rx") == "'\rx"
