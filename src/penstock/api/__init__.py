"""What users call: functions, maps, combinators."""
