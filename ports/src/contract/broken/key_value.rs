//! Key-value stores that break K1 to K11. [`super::durability`] breaks D5, on crashes and transient
//! updates.

mod repeats;
mod scans;
mod single;
mod transactions;
mod transient;

use std::sync::Arc;

use super::Broken;
use crate::{contract::key_value::Subject, decorate::KeyValueDecorator, key_value::SharedKeyValue};

/// Every broken store, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("K1", "ReadsStale", |subject| {
        altered(subject, single::ReadsStale::around)
    }),
    Broken::new("K2", "ForgetsConditions", |subject| {
        altered(subject, single::ForgetsConditions)
    }),
    Broken::new("K2", "ChecksThenWrites", |subject| {
        altered(subject, single::ChecksThenWrites)
    }),
    Broken::new("K2", "HidesTheWinner", |subject| {
        altered(subject, single::HidesTheWinner)
    }),
    Broken::new("K3", "AppliesHalfOnError", |subject| {
        altered(subject, single::AppliesHalfOnError)
    }),
    Broken::new("K4", "LosesAdditions", |subject| {
        altered(subject, single::SetsLater::for_additions)
    }),
    Broken::new("K4", "LosesAppends", |subject| {
        altered(subject, single::SetsLater::for_appends)
    }),
    Broken::new("K4", "LosesRemovals", |subject| {
        altered(subject, single::SetsLater::for_removals)
    }),
    Broken::new("K4", "RemovesTheSameFirst", |subject| {
        altered(subject, single::SetsLater::for_removals_of_the_first)
    }),
    Broken::new("K5", "HalfTransacts", |subject| {
        altered(subject, transactions::HalfTransacts)
    }),
    Broken::new("K5", "JudgesThenTransacts", |subject| {
        altered(subject, transactions::JudgesThenTransacts)
    }),
    Broken::new("K6", "UnorderedScan", |subject| {
        altered(subject, scans::UnorderedScan)
    }),
    Broken::new("K6", "IgnoresBounds", |subject| {
        altered(subject, scans::IgnoresBounds)
    }),
    Broken::new("K6", "TearsPages", |subject| {
        altered(subject, scans::TearsPages)
    }),
    Broken::new("K8", "ForgetsOperations", |subject| {
        altered(subject, repeats::ForgetsOperations)
    }),
    Broken::new("K8", "GuessesForgotten", |subject| {
        altered(subject, repeats::GuessesForgotten)
    }),
    Broken::new("K9", "RestartsVersions", |subject| {
        altered(subject, repeats::RestartsVersions::around)
    }),
    Broken::new("K10", "KeepsTransientsToItself", |subject| {
        altered(subject, transient::KeepsTransientsToItself)
    }),
    Broken::new("K10", "PutsTransientsAhead", |subject| {
        altered(subject, transient::PutsTransientsAhead)
    }),
    Broken::new("K11", "SaysThereIsRoom", |subject| {
        altered(subject, transient::SaysThereIsRoom)
    }),
    Broken::new("K11", "SaysThereIsNone", |subject| {
        altered(subject, transient::SaysThereIsNone)
    }),
];

fn altered<D: KeyValueDecorator + 'static>(
    subject: Subject,
    around: fn(SharedKeyValue) -> D,
) -> Subject {
    Subject {
        store: Arc::new(around(subject.store)),
        ..subject
    }
}
