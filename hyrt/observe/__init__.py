"""What a run reports of itself, and the hooks that observe a run or inject faults into it."""
