//! Worlds, workloads, fault schedules and checkers for seeded runs of the whole house.
