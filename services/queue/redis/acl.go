package redis

import "strings"

// commands are what a user must be allowed: what scripts call, and what is
// called beside them.
const commands = "ping hello info command time wait " +
	"eval evalsha script|load " +
	"get getrange set setnx setrange pexpire unlink sadd smembers srem " +
	"hget hmget hset hdel hexists hscan rpush lrange ltrim lindex zadd zrem zrange zrangebyscore zscore zcard " +
	"publish subscribe unsubscribe"

// Rules are the ACL rules of a user under which the engine works, for keys that
// begin with a prefix (default "dp"), as ACL SETUSER takes them beside "on" and
// a password:
//
//	ACL SETUSER deltaplane on >PASSWORD resetkeys resetchannels -@all ~dp:* &dp:wake +ping ...
//
// Among them +config|get is for durability only: without it DURABILITY_FSYNC
// needs WAITAOF (+waitaof, where the server knows it). A cluster needs
// +cluster|slots, a database other than 0 +select.
func Rules(prefix string) []string {
	if prefix == "" {
		prefix = "dp"
	}
	out := []string{"resetkeys", "resetchannels", "-@all", "~" + prefix + ":*", "&" + prefix + ":wake"}
	for c := range strings.FieldsSeq(commands + " config|get cluster|slots") {
		out = append(out, "+"+c)
	}
	return out
}
