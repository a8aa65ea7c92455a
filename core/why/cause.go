package why

// Cause is why a key waits, one of a closed set.
type Cause string

// The causes. None says that the key does not wait.
const (
	None Cause = "none"

	// The queue hands the key out to nobody.
	QueueUnknown    Cause = "queue_unknown"
	QueuePaused     Cause = "queue_paused"
	QueueClosed     Cause = "queue_closed"
	NoWorker        Cause = "no_worker"
	WorkersBusy     Cause = "workers_busy"
	BucketExhausted Cause = "bucket_exhausted"
	StoreRestarted  Cause = "store_restarted"
	StoreFull       Cause = "store_full"
	ClockStep       Cause = "clock_step"
	NextInLine      Cause = "next_in_line"
	Delayed         Cause = "delayed"

	// Somebody has the key.
	Running       Cause = "running"
	StuckHolder   Cause = "stuck_holder"
	HolderStopped Cause = "holder_stopped"

	// Its runs fail.
	Backoff        Cause = "backoff"
	BackoffMaximum Cause = "backoff_maximum"
	AdmissionDeny  Cause = "admission_denied"
	Forbidden      Cause = "forbidden"
	Conflict       Cause = "conflict"

	// It is dead.
	PoisonKey  Cause = "poison_key"
	MaxRetries Cause = "max_retries"
	Terminal   Cause = "terminal"

	// What it must see does not come.
	IndexLagging  Cause = "index_lagging"
	IndexFrozen   Cause = "index_frozen"
	IndexUnsynced Cause = "index_not_synced"
	ReflectorDead Cause = "reflector_dead"
	MirrorFailing Cause = "mirror_failing"
	LogDead       Cause = "log_dead"
	NotMirrored   Cause = "not_mirrored"

	// Nobody can tell.
	QueueSilent Cause = "queue_silent"
	IndexSilent Cause = "index_silent"
)

// Answer is why a key waits.
type Answer struct {
	Queue string `json:"queue"`
	Key   string `json:"key"`
	State string `json:"state"`
	Cause Cause  `json:"cause"`
	// Also are further causes that hold at the same time.
	Also []Cause `json:"also,omitempty"`
	// Sentence says what the key waits for and what would help.
	Sentence string    `json:"sentence"`
	Timeline []Entry   `json:"timeline"`
	Silent   []Silence `json:"silent,omitempty"`
}

// finding is a cause with its half sentences: what is waited for, and what would help.
type finding struct {
	cause       Cause
	waits, help string
}

func (f finding) sentence() string {
	if f.help == "" {
		return f.waits + "."
	}
	return f.waits + "; " + f.help + "."
}
