//! A lab, a daemon in it, and sandboxes that know the lab's authority.

use pando_testkit::lab::{Bundle, Lab, RESOLVER};
use pando_testkit::{Options, World};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Tries things in a guest; see its own words.
const NET: &str = include_str!("../../guest/net.py");

/// Holds connections in a guest; see its own words.
const HOLD: &str = include_str!("../../guest/hold.py");

/// Far above what one command takes without KVM on a busy machine.
const COMMAND_SECONDS: u32 = 180;

/// How long what a guest tells may take.
const TOLD_TIMEOUT: Duration = Duration::from_secs(30);

/// A daemon in a lab. It is gone before the lab is.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) lab: Lab,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// One whose daemon has these settings, too.
    pub(crate) fn with(settings: &[(&str, &str)]) -> Self {
        let lab = Lab::new();
        let settings = [("PANDO_DNS", RESOLVER)]
            .into_iter()
            .chain(settings.iter().copied());
        let world = World::with(Options {
            env: settings
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            ..Options::default()
        });
        Self { world, lab }
    }

    /// A sandbox with this policy; without one where it is null.
    pub(crate) fn guest(&self, egress: &Value) -> Guest<'_> {
        let request = match egress {
            Value::Null => json!({}),
            egress => json!({ "egress": egress }),
        };
        let made = self.world.api().post("/v1/sandboxes", &request);
        assert_eq!(made.status, 201, "{request}: {}", made.text);
        let id = made.json()["id"].as_str().unwrap().to_owned();
        self.prepared(id)
    }

    /// Puts into a sandbox what the tests need there.
    pub(crate) fn prepared(&self, id: String) -> Guest<'_> {
        let guest = Guest { stage: self, id };
        guest.put("/tmp/net.py", NET.as_bytes());
        guest.put("/tmp/hold.py", HOLD.as_bytes());
        let authority = std::fs::read(self.lab.authority()).unwrap();
        guest.put("/tmp/authority.crt", &authority);
        // What curl, git, pip and apt trust; `update-ca-certificates` makes the same file.
        guest.sh("sudo sh -c 'cat /tmp/authority.crt >> /etc/ssl/certs/ca-certificates.crt'");
        guest
    }

    /// A sandbox that is a copy of one with everything in it.
    pub(crate) fn copy(&self, id: &str) -> Guest<'_> {
        Guest {
            stage: self,
            id: id.to_owned(),
        }
    }
}

/// A sandbox.
pub(crate) struct Guest<'s> {
    stage: &'s Stage,
    pub(crate) id: String,
}

impl Guest<'_> {
    pub(crate) fn put(&self, path: &str, content: &[u8]) {
        let path = format!("/v1/sandboxes/{}/files?path={path}", self.id);
        let put = self.stage.world.api().put(&path, content);
        assert!((200..300).contains(&put.status), "{path}: {}", put.text);
    }

    /// Takes a program of the host's into the sandbox and gives its path there.
    pub(crate) fn take(&self, program: &str) -> String {
        let bundle = Bundle::of(program);
        self.put("/tmp/bundle.tar", &bundle.tar);
        self.sh("tar -C /tmp -xf /tmp/bundle.tar && rm /tmp/bundle.tar");
        format!("/tmp/{program}/{program}")
    }

    /// Runs a shell line, which must succeed.
    pub(crate) fn sh(&self, line: &str) -> String {
        let (code, output) = self.run(line);
        assert_eq!(code, 0, "`{line}`: {output}");
        output
    }

    /// Runs a shell line: its exit code, and its stdout; where it failed, its stderr too.
    pub(crate) fn run(&self, line: &str) -> (i64, String) {
        let request = json!({ "shell": line, "timeout_s": COMMAND_SECONDS });
        let answer = self.stage.world.exec(&self.id, &request);
        let code = answer["exit_code"].as_i64().unwrap_or(-1);
        let mut output = answer["stdout"].as_str().unwrap_or_default().to_owned();
        if code != 0 {
            output += answer["stderr"].as_str().unwrap_or_default();
        }
        (code, output.trim_end().to_owned())
    }

    /// What curl says; its exit code where that is not 0.
    pub(crate) fn curl(&self, arguments: &str) -> Result<String, i64> {
        match self.run(&format!("curl -sS --max-time 30 {arguments}")) {
            (0, said) => Ok(said),
            (code, _) => Err(code),
        }
    }

    /// Fetches a page, which must be the one of this site.
    pub(crate) fn greeted_by(&self, site: &str, arguments: &str) {
        let said = self.curl(arguments);
        assert_eq!(said, Ok(format!("hello from {site}")), "{arguments}");
    }

    /// Tries things, as `net.py` has them.
    pub(crate) fn tries(&self, what: &Value) -> Vec<Outcome> {
        let line = format!("sudo python3 /tmp/net.py '{what}'");
        let said = self.sh(&line);
        let outcomes: Vec<Value> = serde_json::from_str(&said).unwrap();
        let tried = what.as_array().unwrap().clone();
        tried
            .into_iter()
            .zip(outcomes)
            .map(|(tried, found)| Outcome { tried, found })
            .collect()
    }

    /// Tries one thing.
    pub(crate) fn tries_to(&self, what: &Value) -> Outcome {
        self.tries(&json!([what])).remove(0)
    }

    /// Begins to hold connections, as `hold.py` has them, and waits until all are open.
    pub(crate) fn hold(&self, connections: &[&str]) {
        let words: Vec<String> = connections
            .iter()
            .map(|words| format!("'{words}'"))
            .collect();
        self.sh(&format!(
            "setsid python3 /tmp/hold.py {} > /tmp/hold.out 2>&1 < /dev/null &",
            words.join(" ")
        ));
        for words in connections {
            let name = words.split(' ').next().unwrap();
            self.await_held(name, "open", |told| told.starts_with("open"));
        }
    }

    /// Waits until a held connection was cut: by which error, and how many milliseconds after
    /// this life of the sandbox began.
    pub(crate) fn await_cut(&self, name: &str) -> (String, i64) {
        let told = self.await_held(name, "cut", |told| told.starts_with("cut"));
        let mut words = told.split(' ').skip(1);
        let mut next = || words.next().unwrap_or_default().to_owned();
        (next(), next().parse().unwrap_or_else(|_| panic!("{told}")))
    }

    /// Waits until a held connection has said and heard more than it has by now.
    pub(crate) fn await_talk(&self, name: &str) {
        let now = self.await_held(name, "open", |told| told.starts_with("open"));
        self.await_held(name, "talking", |told| {
            told.starts_with("open") && told != now
        });
    }

    fn await_held(&self, name: &str, what: &str, fits: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + TOLD_TIMEOUT;
        loop {
            let (_, told) = self.run(&format!("cat /dev/shm/held/{name}"));
            if fits(&told) {
                return told;
            }
            assert!(
                Instant::now() < deadline,
                "`{name}` is not {what}: {told}\n{}",
                self.run("cat /tmp/hold.out").1
            );
        }
    }

    /// Gives the sandbox another policy.
    pub(crate) fn patch(&self, egress: &Value) {
        let path = format!("/v1/sandboxes/{}", self.id);
        let body = json!({ "egress": egress }).to_string();
        let headers = [("content-type", "application/json")];
        let api = self.stage.world.api();
        let patched = api.send("PATCH", &path, &headers, body.as_bytes());
        assert_eq!(patched.status, 200, "{body}: {}", patched.text);
    }

    /// The network as REST shows it.
    pub(crate) fn network(&self) -> Value {
        let path = format!("/v1/sandboxes/{}/network", self.id);
        let answer = self.stage.world.api().get(&path);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// The refusals whose place or name this is.
    pub(crate) fn refusals_of(&self, destination: &str) -> Vec<Value> {
        let network = self.network();
        let mut refusals = network["refusals"].as_array().unwrap().clone();
        refusals
            .retain(|refusal| refusal["address"] == destination || refusal["name"] == destination);
        refusals
    }
}

/// What came of something that a guest tried.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) tried: Value,
    pub(crate) found: Value,
}

impl Outcome {
    /// It worked.
    pub(crate) fn is_good(&self) -> bool {
        self.found["error"].is_null()
    }

    /// The error's name.
    pub(crate) fn error(&self) -> &str {
        self.found["error"].as_str().unwrap_or_default()
    }

    /// How long it took, in milliseconds of the guest.
    pub(crate) fn ms(&self) -> f64 {
        self.found["ms"].as_f64().unwrap()
    }

    /// It worked, or else the test failed.
    pub(crate) fn good(&self) {
        assert!(self.is_good(), "{self:?}");
    }

    /// It worked and this came back.
    pub(crate) fn said(&self, reply: &str) {
        assert_eq!(self.found["reply"], reply, "{self:?}");
    }

    /// An error that tells the program what happened; a time-out, or that nobody listens
    /// there, is none where something was refused.
    pub(crate) fn refused(&self) {
        let fits: &[&str] = match self.tried[0].as_str().unwrap() {
            "tcp" | "say" => &["ECONNREFUSED", "ECONNRESET"],
            "name" => &["EAI_NONAME", "EAI_AGAIN", "EAI_FAIL", "EAI_NODATA"],
            // "Administratively prohibited" is EHOSTUNREACH by IPv4 and EACCES by IPv6.
            _ => &["EHOSTUNREACH", "EACCES"],
        };
        assert!(fits.contains(&self.error()), "{self:?}");
        // Far more than it takes, far less than a time-out.
        assert!(self.ms() < 2000.0, "it took too long: {self:?}");
    }
}

/// The middle one.
pub(crate) fn median(outcomes: &[Outcome]) -> f64 {
    let mut times: Vec<f64> = outcomes.iter().map(Outcome::ms).collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
