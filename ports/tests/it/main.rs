//! The contract suites over the simulated provider. They notice every broken decorator, and
//! metering and faults pass the suites of the ports that they wrap.

mod broken;
mod faults;
mod metering;
mod subjects;
