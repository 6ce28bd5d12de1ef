"""A home for Spark whose Python processes start fast.

Spark puts `pyspark.zip` of its home before everything else on the path of the Python processes it starts, and Python
compiles what it imports from a zip anew in every one of them: two seconds each, and a pipeline has five. In this home
there is no such file, so they import the installed package, which is compiled already. All else are links.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def spark_home(work: Path) -> Path:
    """Make the home below `work`, or find it there. An environment's own SPARK_HOME is left alone.

    Ordering: safe when several do it at once; each link is made whole or found.
    """
    given = os.environ.get("SPARK_HOME")
    if given:
        return Path(given)
    import pyspark

    package = Path(pyspark.__file__).parent
    home = work / "home"
    home.mkdir(parents=True, exist_ok=True)
    for each in package.iterdir():
        if each.name != "python":
            with suppress(FileExistsError):
                (home / each.name).symlink_to(each)
    return home
