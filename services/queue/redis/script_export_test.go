package redis

// KeyCount is how many keys a turn declares.
var KeyCount = len(keys("", "", 0, ""))
