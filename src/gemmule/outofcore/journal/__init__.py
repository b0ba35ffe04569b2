"""The write-ahead journal of a result: finished tiles survive a crash, and an interrupted run resumes."""
