"""What a study will cost before its first job: memory, time, disk and money, computed without
torch."""
