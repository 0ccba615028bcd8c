//! A browser: Chromium without a window, driven by the WebDriver protocol.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use ureq::Agent;

pub(crate) const TAB: &str = "\u{e004}";
pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const ESCAPE: &str = "\u{e00c}";
pub(crate) const END: &str = "\u{e010}";
pub(crate) const HOME: &str = "\u{e011}";
pub(crate) const UP: &str = "\u{e013}";
pub(crate) const DOWN: &str = "\u{e015}";

/// For a condition in the page, which asks again every two seconds.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Browser {
    driver: Child,
    agent: Agent,
    /// The driver's address for this session; empty until there is one.
    session: String,
    process: Option<Pid>,
    profile: PathBuf,
}

impl Browser {
    /// `None` if there is no browser on this machine; prints what is missing.
    pub(crate) fn start() -> Option<Browser> {
        let (browser, driver) = match (found("chromium"), found("chromedriver")) {
            (Some(browser), Some(driver)) => (browser, driver),
            (browser, _) => {
                let missing = if browser.is_none() { "chromium" } else { "chromedriver" };
                eprintln!(
                    "SKIPPED: no {missing}; on Debian: apt-get install chromium chromium-driver"
                );
                return None;
            }
        };
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("browser-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&profile).unwrap();
        let mut driver = Command::new(driver)
            .arg("--port=0")
            // The driver tells it to Chromium, too: crash reports and caches are in the profile.
            .env("HOME", &profile)
            .env("TMPDIR", &profile)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        // The driver is ended by `drop`, whatever fails from here on.
        let config =
            Agent::config_builder().timeout_global(Some(LIMIT)).http_status_as_error(false);
        let agent = Agent::from(config.build());
        let mut started = Browser { driver, agent, session: String::new(), process: None, profile };
        let said = lines.find_map(|line| {
            line.unwrap().split_once("successfully on port ").map(|(_, port)| port.to_owned())
        });
        // It goes on to write there.
        std::thread::spawn(move || lines.for_each(drop));
        let port = said.expect("the driver's port").trim_end_matches('.').to_owned();
        started.begin(&format!("http://127.0.0.1:{port}/session"), &browser);
        Some(started)
    }

    fn begin(&mut self, url: &str, browser: &Path) {
        let mut arguments = vec![
            "--headless=new".to_owned(),
            format!("--user-data-dir={}", self.profile.join("profile").display()),
            "--no-first-run".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            // Whatever else it would ask for is not asked for outside.
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1".to_owned(),
        ];
        if rustix::process::geteuid().is_root() {
            arguments.push("--no-sandbox".to_owned());
        }
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "binary": browser, "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        } } });
        let begun = self.ask("POST", url, &wanted);
        self.session = format!("{url}/{}", begun["sessionId"].as_str().unwrap());
        let process = begun["capabilities"]["goog:processID"].as_i64();
        self.process = process.map(|id| Pid::from_raw(i32::try_from(id).unwrap()));
    }

    fn ask(&self, method: &str, url: &str, body: &Value) -> Value {
        let answer = match method {
            "POST" => self.agent.post(url).send_json(body),
            "GET" => self.agent.get(url).call(),
            _ => self.agent.delete(url).call(),
        };
        let mut answer = answer.unwrap_or_else(|error| panic!("{method} {url}: {error}"));
        let is_done = answer.status().is_success();
        let mut body = answer.body_mut().with_config().limit(1 << 28).read_json::<Value>().unwrap();
        assert!(is_done, "{method} {url}: {}", body["value"]["message"]);
        body["value"].take()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("{}/{path}", self.session), body)
    }

    pub(crate) fn open(&self, url: &str) {
        self.post("url", &json!({ "url": url }));
    }

    pub(crate) fn load_again(&self) {
        self.post("refresh", &json!({}));
    }

    /// The result of a function's body in the page.
    pub(crate) fn script(&self, text: &str) -> Value {
        self.post("execute/sync", &json!({ "script": text, "args": [] }))
    }

    /// The value of an expression in the page.
    pub(crate) fn value(&self, expression: &str) -> Value {
        self.script(&format!("return {expression};"))
    }

    /// The text that a person sees in an element; empty if it is not shown.
    pub(crate) fn text(&self, selector: &str) -> String {
        let element = format!("document.querySelector({selector:?})");
        let text = self
            .value(&format!("{element} && {element}.checkVisibility() ? {element}.innerText : ''"));
        text.as_str().unwrap().to_owned()
    }

    pub(crate) fn until(&self, expression: &str) {
        let start = Instant::now();
        while self.value(&format!("Boolean({expression})")) != true {
            if start.elapsed() > LIMIT {
                panic!("never: {expression}; the page says: {}", self.text("body"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn until_shown(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({text:?})"));
    }

    /// Presses keys one after another, as a person does.
    pub(crate) fn press(&self, keys: &[&str]) {
        for key in keys {
            let presses =
                json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
            self.post(
                "actions",
                &json!({ "actions": [{ "type": "key", "id": "keys", "actions": presses }] }),
            );
        }
    }

    pub(crate) fn click(&self, selector: &str) {
        let found = self.post("element", &json!({ "using": "css selector", "value": selector }));
        let element = found.as_object().unwrap().values().next().unwrap().as_str().unwrap();
        self.post(&format!("element/{element}/click"), &json!({}));
    }

    pub(crate) fn command(&self, command: &str, parameters: &Value) -> Value {
        self.post("goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// A window of this size, for a person who prefers this.
    pub(crate) fn view(&self, width: u32, height: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", &size);
        let scheme = json!({ "features": [
            { "name": "prefers-color-scheme", "value": scheme },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ] });
        self.command("Emulation.setEmulatedMedia", &scheme);
    }

    /// Runs in every page that is opened from now on, before the page's own script.
    pub(crate) fn run_first(&self, text: &str) {
        self.command("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": text }));
    }

    /// Keeps what the window shows, for people to look at.
    pub(crate) fn picture(&self, name: &str) {
        let taken = self.ask("GET", &format!("{}/screenshot", self.session), &Value::Null);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page-pictures");
        fs::create_dir_all(&folder).unwrap();
        let bytes = BASE64_STANDARD.decode(taken.as_str().unwrap()).unwrap();
        fs::write(folder.join(format!("{name}.png")), bytes).unwrap();
    }

    /// What the browser complained about, except for lines with this text.
    pub(crate) fn complaints(&self, except: Option<&str>) -> Vec<String> {
        let log = self.post("se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().unwrap().iter().map(|line| line["message"].as_str().unwrap());
        lines
            .filter(|line| except.is_none_or(|text| !line.contains(text)))
            .map(str::to_owned)
            .collect()
    }

    /// The addresses that the page asked for, whether or not anybody answered.
    pub(crate) fn asked_for(&self) -> Vec<String> {
        let log = self.post("se/log", &json!({ "type": "performance" }));
        let address = |line: &Value| {
            let event: Value = serde_json::from_str(line["message"].as_str().unwrap()).unwrap();
            let event = &event["message"];
            let request = &event["params"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            // The browser begins with a page of its own.
            let is_ours = !text(&request["documentURL"]).starts_with("chrome://");
            let is_request = is_ours && event["method"] == "Network.requestWillBeSent";
            is_request.then(|| text(&request["request"]["url"]))
        };
        log.as_array().unwrap().iter().filter_map(address).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = self.agent.delete(&self.session).call();
        }
        if let Some(process) = self.process {
            let _ = kill(process, Signal::SIGKILL);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}

fn found(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}
