//! The program as its users meet it, and the rules of the code base.

#![allow(clippy::disallowed_methods)] // Why: tests run the real program in real time.

mod client;
mod commands;
mod configuration;
mod doctor_journal;
mod effects;
mod files_exec;
mod handed_on;
mod memory_function;
mod mutants;
mod objects;
mod process;
mod serve;
mod tidy;
mod volumes;
