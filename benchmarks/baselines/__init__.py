"""The programs that Penstock is measured against, in plain torch."""
