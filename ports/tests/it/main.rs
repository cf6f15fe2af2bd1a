//! The ports' own parts held to the ports' promises, over the simulated provider: the suites notice every
//! broken decorator, and the decorators meant for use pass the suites of what they wrap.

mod broken;
mod faults;
mod metering;
mod subjects;
