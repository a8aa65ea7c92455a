// Package checkpoint keeps a collection in a file, so that an indexer that
// starts again reads it from there and from the log only what came since.
//
// The log is the truth and a file only saves time: one that is damaged, cut,
// of another format, of another collection or of another log is not used, and
// the log is replayed. That is decided about the whole file before any of it
// is used.
//
// # Format
//
//	file   = magic format block... end-block
//	block  = kind:1 length:4 payload crc:4
//
// Numbers of fixed width are little-endian, the others varints; strings and
// lists carry their length in front. The checksum (CRC-32C) covers kind, length,
// payload and the number of the block, so that blocks can be neither changed,
// cut, repeated nor put in another order. Blocks are
//
//	header      what the collection is, and where in the log
//	tables      strings, label sets, owner lists, readings, fields, dictionaries
//	payloads    the stored bytes of the objects that come next
//	objects     the rest of these objects, in key order
//	tombstones  deletes that are remembered
//	end         how many of each there must have been
//
// In a file that is encrypted the payload of each block but the header is, and
// belongs to that header and to the block's place. The format says so.
//
// What objects share is written once, before the first that needs it: a
// dictionary is in the file, or nothing that was compressed with it is.
package checkpoint
