//! Between the engine's values and the shim's messages.

use crate::request::{
    Command, ExecResult, Exit, NetworkConnection, NetworkRefusal, NetworkReport, OutputStream,
    ProcessEvent, ProcessInfo, ProcessInput, WindowSize,
};
use crate::trace;
use pando_types::EgressPolicy;
use pando_wire::shim::{self, attach_response, input_request};
use std::time::{Duration, UNIX_EPOCH};

pub(crate) fn command(mut command: Command) -> shim::Command {
    trace::hand_on(&mut command.env);
    let timeout = command.timeout.unwrap_or_default();
    // Zero means none on the wire: the shortest timeout is a millisecond.
    let timeout_ms = u64::try_from(timeout.as_millis())
        .unwrap_or(u64::MAX)
        .max(u64::from(command.timeout.is_some()));
    shim::Command {
        argv: command.argv,
        env: command.env.into_iter().collect(),
        cwd: command.cwd,
        user: command.user.unwrap_or_default(),
        timeout_ms,
        ..Default::default()
    }
}

pub(crate) fn window_size(size: WindowSize) -> shim::WindowSize {
    shim::WindowSize {
        cols: size.cols,
        rows: size.rows,
        ..Default::default()
    }
}

pub(crate) fn input(input: ProcessInput) -> input_request::Input {
    match input {
        ProcessInput::Data(data) => input_request::Input::Data(data.to_vec()),
        ProcessInput::CloseStdin => input_request::Input::CloseStdin(true),
        ProcessInput::Signal(signal) => input_request::Input::Signal(signal),
        ProcessInput::Resize(size) => input_request::Input::Resize(Box::new(window_size(size))),
    }
}

pub(crate) fn exit(exit: &shim::Exit) -> Exit {
    Exit {
        exit_code: exit.exit_code,
        signal: exit.signal,
        timed_out: exit.timed_out,
    }
}

pub(crate) fn network_report(egress: EgressPolicy, told: shim::NetworkResponse) -> NetworkReport {
    let named = |name: String| Some(name).filter(|name| !name.is_empty());
    let connections = told.connections.into_iter();
    let connections = connections.map(|connection| NetworkConnection {
        protocol: connection.protocol,
        guest: connection.guest,
        remote: connection.remote,
        name: named(connection.name),
        state: connection.state,
        sent_bytes: connection.sent_bytes,
        received_bytes: connection.received_bytes,
        age_ms: connection.age_ms,
    });
    let refusals = told.refusals.into_iter().map(|refusal| NetworkRefusal {
        at: UNIX_EPOCH + Duration::from_millis(refusal.at_ms),
        protocol: refusal.protocol,
        address: refusal.address,
        port: refusal.port,
        name: named(refusal.name),
        rule: refusal.rule,
        count: refusal.count,
    });
    NetworkReport {
        egress,
        connections: connections.collect(),
        refusals: refusals.collect(),
        sent_bytes: told.sent_bytes,
        received_bytes: told.received_bytes,
        connections_total: told.connections_total,
        refused_total: told.refused_total,
    }
}

pub(crate) fn exec_result(response: shim::ExecResponse) -> ExecResult {
    let ended = response.exit.into_option().as_ref().map(exit);
    ExecResult {
        exit: ended.unwrap_or(Exit {
            exit_code: None,
            signal: None,
            timed_out: false,
        }),
        process_id: response.process_id,
        stdout: response.stdout,
        stderr: response.stderr,
        truncated: response.truncated,
        // A jailed process says it: anything but a sane number is taken as nothing.
        duration: Duration::try_from_secs_f64(response.duration_ms / 1000.0).unwrap_or_default(),
    }
}

pub(crate) fn process_event(message: shim::AttachResponse) -> Option<ProcessEvent> {
    Some(match message.event? {
        attach_response::Event::Gap(gap) => ProcessEvent::Gap {
            lost_bytes: gap.lost_bytes,
        },
        attach_response::Event::Exit(ended) => ProcessEvent::Exit(exit(&ended)),
        attach_response::Event::Output(output) => {
            use attach_response::output::Stream;
            let stream = match output.stream.as_known()? {
                Stream::STREAM_STDOUT => OutputStream::Stdout,
                Stream::STREAM_STDERR => OutputStream::Stderr,
                Stream::STREAM_TTY => OutputStream::Tty,
                Stream::STREAM_UNSPECIFIED => return None,
            };
            ProcessEvent::Output {
                stream,
                data: output.data.into(),
                next_offset: output.next_offset,
            }
        }
    })
}

pub(crate) fn process_info(info: shim::ProcessInfo) -> ProcessInfo {
    ProcessInfo {
        process_id: info.process_id,
        pid: info.pid,
        argv: info.argv,
        tty: info.tty,
        exit: info.exit.into_option().as_ref().map(exit),
        started_at: UNIX_EPOCH
            .checked_add(Duration::from_millis(info.started_at_ms))
            .unwrap_or(UNIX_EPOCH),
    }
}
