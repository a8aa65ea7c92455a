// Package reflector mirrors collections of an API server onto the delta log, once for everybody.
//
// Each collection has a loop of its own, so that one that fails holds no other back:
//
//	standby --lease--> rebuilding --shadow from the log--> listing --synced--> watching
//	   ^                   |  (W known: straight to watching)   ^  |               |
//	   |                   '------------------------------------'  '--back-off-----'
//	   '--lease lost, deposed, log lost, new epoch--
//
// The source side follows client-go's reflector (R-01..R-30 of the behaviour checklist) except where the log must not lie: lists never
// go back, the back-off does not restart during one outage, an object that cannot be read is quarantined and
// holds nothing back, and every end of a watch is reported.
package reflector
