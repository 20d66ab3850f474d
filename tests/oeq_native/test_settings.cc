// SPDX-License-Identifier: BSD-3-Clause
#include <sched.h>

#include "backend.h"
#include "check.h"
#include "settings.h"
#include "sha256.h"

using check::Environment;

TEST(defaults_are_the_cores_at_hand_and_a_folder_of_the_user) {
  const Environment threads("OEQ_COMPILE_THREADS", nullptr), queue("OEQ_COMPILE_QUEUE", nullptr),
      cache("OEQ_CACHE", nullptr), verbose("OEQ_VERBOSE", nullptr), xdg("XDG_CACHE_HOME", nullptr),
      home("HOME", "/home/u");
  const oeq::Settings settings = oeq::read_settings();
  CHECK(settings.threads >= 1 && settings.threads <= 16);
  CHECK(settings.queue_limit == 1024);
  CHECK(settings.cache_directory == "/home/u/.cache/oeq_native");
  CHECK(!settings.verbose);
  const Environment xdg_set("XDG_CACHE_HOME", "/var/u");
  CHECK(oeq::read_settings().cache_directory == "/var/u/oeq_native");
}

TEST(the_default_follows_the_affinity_mask) {
  const Environment threads("OEQ_COMPILE_THREADS", nullptr);
  cpu_set_t before, one;
  CHECK(sched_getaffinity(0, sizeof(before), &before) == 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before)) {
      CPU_SET(cpu, &one);
      break;
    }
  }
  CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
  const int restricted = oeq::read_settings().threads;
  sched_setaffinity(0, sizeof(before), &before);
  CHECK(restricted == 1);
}

TEST(values_are_taken) {
  const Environment threads("OEQ_COMPILE_THREADS", "3"), queue("OEQ_COMPILE_QUEUE", "5"), cache("OEQ_CACHE", "off"),
      verbose("OEQ_VERBOSE", "1");
  const oeq::Settings settings = oeq::read_settings();
  CHECK(settings.threads == 3);
  CHECK(settings.queue_limit == 5);
  CHECK(settings.cache_directory.empty());
  CHECK(settings.verbose);
}

TEST(values_that_are_no_good_are_refused_by_name) {
  for (const char *variable : {"OEQ_COMPILE_THREADS", "OEQ_COMPILE_QUEUE", "OEQ_VERBOSE"}) {
    for (const char *value : {"", "two", "-1", "1.5", "70000", "3x", " 3", "+3", "99999999999999999999"}) {
      const Environment bad(variable, value);
      CHECK_THROWS(std::string(variable) + "=" + value, oeq::read_settings());
    }
  }
  for (const char *variable : {"OEQ_COMPILE_THREADS", "OEQ_COMPILE_QUEUE"}) {
    const Environment zero(variable, "0");
    CHECK_THROWS(std::string(variable) + "=0: must be a whole number from 1", oeq::read_settings());
  }
  const Environment relative("OEQ_CACHE", "some/folder");
  CHECK_THROWS("OEQ_CACHE=some/folder: must be an absolute path", oeq::read_settings());
}

TEST(sha256_gives_the_standards_examples) {
  // FIPS 180-4 examples, and lengths around the padding's edges from coreutils' sha256sum.
  CHECK(oeq::sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(oeq::sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(oeq::sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(oeq::sha256(std::string(55, 'a')) == "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  CHECK(oeq::sha256(std::string(64, 'a')) == "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  CHECK(oeq::sha256(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
