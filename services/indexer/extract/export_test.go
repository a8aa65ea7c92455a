package extract

// Remembered is how many values an extractor has in its caches.
func Remembered(x *Extractor) int {
	return len(x.strings.young) + len(x.strings.old) + len(x.labels.young) + len(x.labels.old) +
		len(x.owners.young) + len(x.owners.old) + len(x.fields.young) + len(x.fields.old)
}
