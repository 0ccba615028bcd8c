//! The settings that `testcontainers.toml` makes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};

const FILE: &str = "testcontainers.toml";
const LONGEST_START: Duration = Duration::from_secs(3600);

/// The server to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) image: String,
    pub(crate) tag: String,
    pub(crate) startup_timeout: Duration,
    pub(crate) env: BTreeMap<String, String>,
}

impl Default for Settings {
    fn default() -> Settings {
        let env = [
            ("ZOO_TICK_TIME", "200"),
            ("ZOO_MAX_CLIENT_CNXNS", "0"),
            ("ZOO_4LW_COMMANDS_WHITELIST", "*"),
            ("ZOO_ADMINSERVER_ENABLED", "false"),
            ("ZOO_CFG_EXTRA", "minSessionTimeout=200 maxSessionTimeout=60000"),
        ];
        Settings {
            image: "zookeeper".to_owned(),
            tag: "3.8".to_owned(),
            startup_timeout: Duration::from_secs(60),
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    image: Option<String>,
    tag: Option<String>,
    startup_timeout_seconds: Option<u64>,
    env: Option<BTreeMap<String, String>>,
}

impl Settings {
    /// Reads the file in this directory; defaults replace what it leaves out.
    pub(crate) fn of_package(root: Option<&Path>) -> Result<Settings> {
        let Some(root) = root else { return Settings::of("") };
        let path = root.join(FILE);
        let read = match fs::read_to_string(&path) {
            Ok(text) => Settings::of(&text),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Settings::of(""),
            Err(cause) => Err(invalid(cause.to_string()).caused_by(cause)),
        };
        read.map_err(|error| invalid(format!("{}: {error}", path.display())).caused_by(error))
    }

    fn of(text: &str) -> Result<Settings> {
        let File { image, tag, startup_timeout_seconds, env } = File::parse(text)?;
        let defaults = Settings::default();
        Settings {
            image: image.unwrap_or(defaults.image),
            tag: tag.unwrap_or(defaults.tag),
            startup_timeout: startup_timeout_seconds
                .map_or(defaults.startup_timeout, Duration::from_secs),
            env: env.unwrap_or(defaults.env),
        }
        .checked()
    }

    /// The image as Docker names it.
    #[cfg(feature = "docker")]
    pub(crate) fn image_and_tag(&self) -> String {
        format!("{}:{}", self.image, self.tag)
    }

    /// Sets the image from `name:tag`. A colon before a slash belongs to a registry's port.
    #[cfg(any(feature = "docker", test))]
    pub(crate) fn set_image(&mut self, image: &str) {
        let (name, tag) = match image.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, tag),
            _ => (image, "latest"),
        };
        self.image = name.to_owned();
        self.tag = tag.to_owned();
    }

    /// Refuses settings that Docker would refuse less clearly, or not at all.
    pub(crate) fn checked(self) -> Result<Settings> {
        let Settings { image, tag, startup_timeout, env } = &self;
        let last = image.rsplit('/').next().unwrap_or_default();
        if last.is_empty() || image.contains(char::is_whitespace) {
            return Err(invalid(format!("image is {image:?}, which is not a valid image name")));
        }
        if last.contains([':', '@']) {
            return Err(invalid(format!("image is {image:?}: write its tag under the key `tag`")));
        }
        if tag.is_empty() || tag.contains(|c: char| c.is_whitespace() || ":/@".contains(c)) {
            return Err(invalid(format!("tag is {tag:?}, which is not a valid tag")));
        }
        if startup_timeout.is_zero() || *startup_timeout > LONGEST_START {
            let seconds = startup_timeout.as_secs();
            let text = format!("the start-up timeout is {seconds} s; it must be from 1 to 3600 s");
            return Err(invalid(text));
        }
        let odd = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = env.keys().find(odd) {
            return Err(invalid(format!("env: {name:?} is not a valid variable name")));
        }
        if let Some((name, _)) = env.iter().find(|(_, value)| value.contains(['\0', '\n'])) {
            return Err(invalid(format!("env: the value of {name} must be a single line")));
        }
        Ok(self)
    }
}

impl File {
    fn parse(text: &str) -> Result<File> {
        toml::from_str(text).map_err(|cause| invalid(cause.to_string()).caused_by(cause))
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let error = Settings::of(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        error.to_string()
    }

    #[test]
    fn the_defaults_are_those_of_the_file_that_is_to_be_copied() {
        let settings = Settings::of_package(None).unwrap();
        assert_eq!((settings.image.as_str(), settings.tag.as_str()), ("zookeeper", "3.8"));
        assert_eq!(settings.startup_timeout, Duration::from_secs(60));
        assert_eq!(settings.env["ZOO_TICK_TIME"], "200");
        assert_eq!(Settings::of_package(Some(Path::new("/nowhere"))).unwrap(), settings);
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let file = fs::read_to_string(repository.join(FILE)).unwrap();
        assert_eq!(Settings::of(&file).unwrap(), settings);
        let File { image, tag, startup_timeout_seconds, env } = File::parse(&file).unwrap();
        assert!(
            image.is_some() && tag.is_some() && startup_timeout_seconds.is_some() && env.is_some()
        );
    }

    #[test]
    fn a_file_changes_what_it_names() {
        let settings = Settings::of("tag = \"3.9\"\n[env]\nZOO_TICK_TIME = \"500\"").unwrap();
        assert_eq!((settings.image.as_str(), settings.tag.as_str()), ("zookeeper", "3.9"));
        assert_eq!(settings.env.len(), 1, "the table is replaced as a whole");
        let settings = Settings::of("startup_timeout_seconds = 5").unwrap();
        assert_eq!(settings.startup_timeout, Duration::from_secs(5));
        assert!(settings.env.len() > 1);
    }

    #[test]
    fn wrong_keys_and_values_are_named() {
        for (text, named) in [
            ("imgae = \"zookeeper\"", "imgae"),
            ("image = 3", "image"),
            ("image = \"\"", "not a valid image name"),
            ("image = \"zookeeper:3.8\"", "under the key `tag`"),
            ("tag = \"a b\"", "not a valid tag"),
            ("startup_timeout_seconds = 0", "from 1 to 3600"),
            ("startup_timeout_seconds = 9223372036854775807", "from 1 to 3600"),
            ("startup_timeout_seconds = -1", "-1"),
            ("[env]\nZOO_TICK_TIME = 200", "line 2"),
            ("[env]\n\"A=B\" = \"c\"", "A=B"),
            ("[env]\nA = \"b\\nc\"", "a single line"),
            ("image = ", "line 1"),
        ] {
            let error = refusal(text);
            assert!(error.contains(named), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn an_image_is_split_into_name_and_tag() {
        let mut settings = Settings::of("").unwrap();
        for (image, name, tag) in [
            ("zookeeper:3.9", "zookeeper", "3.9"),
            ("zookeeper", "zookeeper", "latest"),
            ("here:5000/zk", "here:5000/zk", "latest"),
            ("here:5000/zk:3.9", "here:5000/zk", "3.9"),
        ] {
            settings.set_image(image);
            assert_eq!((settings.image.as_str(), settings.tag.as_str()), (name, tag));
            settings.clone().checked().unwrap();
        }
    }
}
