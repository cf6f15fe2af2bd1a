//! Queues that break Q1 to Q13. [`super::durability`] breaks the points of their answers.

mod admin;
mod delivering;
mod sending;

use std::sync::Arc;

use super::Broken;
use crate::{
    contract::queue::Subject,
    decorate::{QueueAdminDecorator, QueueDecorator},
    queue::{SharedQueue, SharedQueueAdmin},
};

/// Every broken queue, at least one per promise.
pub const BROKEN: &[Broken<Subject>] = &[
    Broken::new("Q1", "ReordersGroup", |subject| {
        altered(subject, sending::ReordersGroup)
    }),
    Broken::new("Q1", "SplitsGroups", |subject| {
        altered(subject, sending::SplitsGroups::around)
    }),
    Broken::new("Q2", "MergesGroups", |subject| {
        altered(subject, sending::MergesGroups)
    }),
    Broken::new("Q3", "NeverRedelivers", |subject| {
        altered(subject, delivering::NeverRedelivers)
    }),
    Broken::new("Q3", "HidesAsItPleases", |subject| {
        altered(subject, delivering::HidesAsItPleases)
    }),
    Broken::new("Q3", "ForgetsDelays", |subject| {
        altered(subject, delivering::ForgetsDelays)
    }),
    Broken::new("Q3", "NeverReady", |subject| {
        altered(subject, delivering::NeverReady)
    }),
    Broken::new("Q3", "SendsHalf", |subject| {
        altered(subject, sending::SendsHalf)
    }),
    Broken::new("Q4", "ForgetsDeduplication", |subject| {
        altered(subject, sending::ForgetsDeduplication)
    }),
    Broken::new("Q4", "NeverForgets", |subject| {
        altered(subject, sending::NeverForgets::around)
    }),
    Broken::new("Q4", "ForgetsTooSoon", |subject| {
        let clock = Arc::clone(&subject.clock);
        Subject {
            queue: Arc::new(sending::ForgetsTooSoon::around(subject.queue, clock)),
            ..subject
        }
    }),
    Broken::new("Q5", "DropsPoison", |subject| {
        administered(subject, admin::DropsPoison)
    }),
    Broken::new("Q5", "SendsTheNextAlong", |subject| {
        altered(subject, delivering::SendsTheNextAlong::around)
    }),
    Broken::new("Q5", "ForgetsReasons", |subject| {
        altered(subject, delivering::ForgetsReasons)
    }),
    Broken::new("Q5", "RaisesNoAlarm", |subject| {
        administered(subject, admin::RaisesNoAlarm)
    }),
    Broken::new("Q6", "TakesStaleHandles", |subject| {
        altered(subject, delivering::TakesStaleHandles)
    }),
    Broken::new("Q7", "KeepsItsOwnOrder", |subject| {
        altered(subject, sending::KeepsItsOwnOrder::around)
    }),
    Broken::new("Q8", "KeepsIdsToItself", |subject| {
        altered(subject, delivering::KeepsIdsToItself)
    }),
    Broken::new("Q8", "CarriesIdsOnce", |subject| {
        altered(subject, delivering::CarriesIdsOnce)
    }),
    Broken::new("Q10", "CountsWhatItGives", |subject| {
        let queue = Arc::clone(&subject.queue);
        let admin = Arc::new(admin::CountsWhatItGives {
            admin: subject.admin,
            queue,
        });
        Subject { admin, ..subject }
    }),
    Broken::new("Q10", "CountsNoDeadLetters", |subject| {
        administered(subject, admin::CountsNoDeadLetters)
    }),
    Broken::new("Q14", "ShowsByDelivering", |subject| {
        let queue = Arc::clone(&subject.queue);
        let admin = Arc::new(admin::ShowsByDelivering {
            admin: subject.admin,
            queue,
        });
        Subject { admin, ..subject }
    }),
    Broken::new("Q14", "ShowsWhatIsUntried", |subject| {
        administered(subject, admin::ShowsWhatIsUntried)
    }),
    Broken::new("Q11", "NeverGivesUp", |subject| {
        altered(subject, delivering::NeverGivesUp)
    }),
    Broken::new("Q11", "TakesGivingUpForDone", |subject| {
        altered(subject, delivering::TakesGivingUpForDone)
    }),
    Broken::new("Q12", "BlamesWhatWasBehind", |subject| {
        altered(subject, delivering::BlamesWhatWasBehind)
    }),
    Broken::new("Q12", "BlamesNothing", |subject| {
        altered(subject, delivering::BlamesNothing)
    }),
    Broken::new("Q13", "SendsAgainWhatIsKnown", |subject| {
        let queue = Arc::clone(&subject.queue);
        let admin = Arc::new(admin::SendsAgainWhatIsKnown {
            admin: subject.admin,
            queue,
        });
        Subject { admin, ..subject }
    }),
    Broken::new("Q13", "KeepsWhatIsRedriven", |subject| {
        let queue = Arc::clone(&subject.queue);
        let admin = Arc::new(admin::KeepsWhatIsRedriven {
            admin: subject.admin,
            queue,
        });
        Subject { admin, ..subject }
    }),
    Broken::new("Q13", "PurgesNothing", |subject| {
        administered(subject, admin::PurgesNothing)
    }),
    Broken::new("Q13", "BeginsAtTheOldest", |subject| {
        administered(subject, admin::BeginsAtTheOldest)
    }),
    Broken::new("Q13", "BeginsAnewBehindWhatIsGone", |subject| {
        administered(subject, admin::BeginsAnewBehindWhatIsGone)
    }),
];

fn altered<D: QueueDecorator + 'static>(subject: Subject, around: fn(SharedQueue) -> D) -> Subject {
    Subject {
        queue: Arc::new(around(subject.queue)),
        ..subject
    }
}

fn administered<D: QueueAdminDecorator + 'static>(
    subject: Subject,
    around: fn(SharedQueueAdmin) -> D,
) -> Subject {
    Subject {
        admin: Arc::new(around(subject.admin)),
        ..subject
    }
}
