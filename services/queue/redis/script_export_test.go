package redis

// KeyCount is how many keys a transaction declares.
var KeyCount = len(keys("", "", 0, ""))
