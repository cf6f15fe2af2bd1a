//! Isolated processes: how they are launched, frozen and ended, and why they died.
//!
//! The server starts its own program again as a [launcher](crate::launcher), which builds the
//! isolation around itself and then becomes the function. Both sides talk over one socket:
//!
//! ```text
//!  server  ->  launcher   the order: what to run, and the limits
//!  server  <-  init       a listener on the loopback that the function sees, and the function's
//!                         user; from here on, init dies with the server
//!  server  <-  init       how the function ended
//! ```
//!
//! The order of a spare names no function, and its listener comes once its interpreter is ready.
//! Between the last two lines it is adopted, once: init gets the order of a function, and sends one
//! byte back when the process is as if it had been launched by that order.

mod control;
mod enforcement;
mod exit;
mod group;
mod handshake;
mod launcher;
mod peers;
mod running;
mod spawner;

pub use self::{
    enforcement::{Enforcement, Measure},
    launcher::Launcher,
};
pub(crate) use self::{launcher::Process, peers::Peers, running::Running};
