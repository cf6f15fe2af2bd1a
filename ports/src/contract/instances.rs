//! The cases of [`Instances`](crate::Instances), over a program that obeys [`Command`]s.
//!
//! The suite cannot know how a provider's programs are written. A provider therefore brings one
//! that serves each channel by itself. It reads a message as a [`Command`] and answers it with one
//! message.

mod channels;
mod death;
mod memory;
mod start;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;

use super::Case;
use crate::{
    Clock, Instances,
    instances::{Channel, Instance, Spec},
};

/// A fresh provider of instances, and a program for them.
#[derive(Clone)]
pub struct Subject {
    /// The port under test.
    pub instances: Arc<dyn Instances>,
    /// A program that obeys [`Command`]s. Cases change its environment and its memory.
    pub spec: Spec,
    /// The clock that cases wait on.
    pub clock: Arc<dyn Clock>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("instances", &self.instances)
            .finish_non_exhaustive()
    }
}

/// A command to the program: words with spaces in between.
///
/// ```text
/// echo TEXT             answers TEXT
/// long BYTES            answers so many letters x
/// instance              answers a text that differs for each instance
/// variable NAME         answers the value of the variable
/// read OFFSET BYTES     answers the bytes of the shared region
/// write OFFSET TEXT     writes TEXT into the shared region, and answers "written"
/// hold MEGABYTES        allocates and touches as much memory, and answers "held"
/// children COUNT        starts processes that never end by themselves, and answers "started"
/// exit STATUS           exits, without an answer
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `echo`.
    Echo(String),
    /// `long`.
    Long(usize),
    /// `instance`.
    Instance,
    /// `variable`.
    Variable(String),
    /// `read`.
    Read(u64, usize),
    /// `write`.
    Write(u64, String),
    /// `hold`.
    Hold(u64),
    /// `children`.
    Children(u32),
    /// `exit`.
    Exit(i32),
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Echo(text) => write!(f, "echo {text}"),
            Self::Long(bytes) => write!(f, "long {bytes}"),
            Self::Instance => f.write_str("instance"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Read(offset, bytes) => write!(f, "read {offset} {bytes}"),
            Self::Write(offset, text) => write!(f, "write {offset} {text}"),
            Self::Hold(megabytes) => write!(f, "hold {megabytes}"),
            Self::Children(count) => write!(f, "children {count}"),
            Self::Exit(status) => write!(f, "exit {status}"),
        }
    }
}

impl Command {
    /// The command in a message, for programs in Rust.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(message).ok()?;
        let (what, rest) = text.split_once(' ').unwrap_or((text, ""));
        let two = || rest.split_once(' ');
        Some(match what {
            "echo" => Self::Echo(rest.to_owned()),
            "long" => Self::Long(rest.parse().ok()?),
            "instance" => Self::Instance,
            "variable" => Self::Variable(rest.to_owned()),
            "read" => Self::Read(two()?.0.parse().ok()?, two()?.1.parse().ok()?),
            "write" => Self::Write(two()?.0.parse().ok()?, two()?.1.to_owned()),
            "hold" => Self::Hold(rest.parse().ok()?),
            "children" => Self::Children(rest.parse().ok()?),
            "exit" => Self::Exit(rest.parse().ok()?),
            _ => return None,
        })
    }
}

/// How long cases watch for something that must not happen.
const A_WHILE: Duration = Duration::from_millis(200);

impl Subject {
    async fn start(&self) -> Arc<dyn Instance> {
        self.start_with(|_| {}).await
    }

    async fn start_with(&self, change: impl FnOnce(&mut Spec)) -> Arc<dyn Instance> {
        let mut spec = self.spec.clone();
        change(&mut spec);
        self.instances.start(&spec).await.expect("it starts")
    }

    async fn open(&self, instance: &Arc<dyn Instance>) -> Arc<dyn Channel> {
        instance.channel().await.expect("it is alive")
    }

    /// The answer of the program, as text.
    async fn ask(&self, channel: &Arc<dyn Channel>, command: Command) -> String {
        send(channel, &command).await;
        let answer = super::within(&*self.clock, "an answer", channel.receive()).await;
        let answer = answer.expect("it is received").expect("it is answered");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

async fn send(channel: &Arc<dyn Channel>, command: &Command) {
    let sent = channel.send(Bytes::from(command.to_string())).await;
    sent.expect("it is alive");
}

/// The suite.
pub const CASES: &[Case<Subject>] = crate::instances_contract!(@list);

/// One test per case of the contract of instances; `run` takes a
/// [`Case<contract::instances::Subject>`](crate::contract::Case) and runs it on a fresh provider.
#[macro_export]
macro_rules! instances_contract {
    ($($run:tt)*) => {
        $crate::contract_cases! { [$($run)*] instances {
            start {
                "X1" a_handle_addresses_one_instance,
                "X1" a_program_sees_its_environment,
            }
            channels {
                "X2" messages_arrive_whole_and_in_order,
                "X2" a_message_over_the_bound_is_refused_and_the_channel_goes_on,
                "X2" channels_of_an_instance_are_independent,
            }
            memory {
                "X3" both_sides_see_what_the_other_wrote_before_its_message,
                "X3" regions_are_zero_at_first_and_not_shared_between_instances,
                "X3" an_access_outside_of_a_region_is_refused,
                "X6" discarded_bytes_are_zeros_for_both_sides_and_others_stay,
                "X6" discarding_outside_of_a_region_is_refused,
                "X7" shared_bytes_stay_as_they_are_until_they_are_dropped,
            }
            death {
                "X4" every_waiter_learns_the_cause_of_a_death,
                "X4" a_dead_instance_takes_no_message_and_no_channel,
                "X4" an_instance_over_its_memory_dies_of_it,
                "X5" an_ended_instance_dies_with_its_children,
                "X5" an_instance_without_handles_is_ended,
            }
        } }
    };
}
