//! How a build tells what it is doing.

/// Something to tell while a build runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A new step has begun; a few words for a person.
    Step(&'a str),
    /// A line of a program's output, for a log. Addresses in it carry no credentials.
    Line(&'a str),
}

/// Where a build's progress goes; called from the thread that builds.
pub type ProgressFn<'a> = &'a (dyn Fn(Progress<'_>) + Sync);
