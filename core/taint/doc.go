// Package taint holds the rules of taints and tolerations that decide how long a
// pod may stay on a node, and which tolerations every pod is given. It reads
// nothing and keeps no time: what it judges and the present time are passed in.
//
// The end of a pod's stay is
//
//	the earliest, over the node's NoExecute taints, of
//	    the later of (taint added, pod bound) + seconds of the first toleration that matches the taint
//
// which depends on stored facts only, never on when somebody looked: a restart
// moves no deadline. A countdown that runs is not moved later by taints that change
// ([Stay.Continue]); its end is the one thing to be remembered of it.
package taint
