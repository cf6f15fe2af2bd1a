//! The scenarios of coordination's rules, each with the variant that drops the rule.

mod alone;
mod attaches;
mod bounds;
mod coordination;
mod endings;
mod ephemerals;
mod fall_back;
mod fated;
mod forgotten;
mod heartbeat;
mod leases;
mod losses;
mod members;
mod objects;
mod overtaken;
mod places;
mod poison;
mod refusals;
mod restart;
mod room;
mod tail;
mod temporaries;
mod transactions;
mod undecided;
mod watches;
mod workflows;
