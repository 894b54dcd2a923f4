"""Checks Kubernetes' and compose's files without a cluster: what kustomize makes of each overlay against Kubernetes' own schemas, and what
no schema knows: that names, times and ports of the files fit together. Needs kubectl, and the package kubernetes-validate.
"""

import copy
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

import kubernetes_validate
import yaml

HERE = pathlib.Path(__file__).resolve().parent
# `preStop.sleep` is there since 1.30. Some versions, so that neither old nor new clusters refuse the files.
VERSIONS = ["1.30", "1.32", "1.34"]
# Made by hand, as the overlay's first lines say.
SECRETS = {"ragstone-bucket", "ragstone-tls", "ragstone-keys"}
# A node ends answers for ten seconds, and writes for as many.
NODE_END_SECONDS = 20
DEADLINE_SECONDS = 120


def need(holds, what):
    if not holds:
        sys.exit(f"NOT SO: {what}")


def rendered(overlay):
    text = subprocess.run(["kubectl", "kustomize", str(HERE / "kubernetes" / overlay)], check=True, capture_output=True, text=True).stdout
    return list(yaml.safe_load_all(text))


def is_valid(document, version):
    try:
        kubernetes_validate.validate(document, version, strict=True)
        return True
    except kubernetes_validate.ValidationError as error:
        return error.message


def misspelt(document):
    """Adds a field with one letter less to the `spec`, or to that of its pods; its name."""
    at = document["spec"]
    at = at.get("template", {}).get("spec", at)
    name = next(name for name in at if len(name) > 4)
    at[name[:-2] + name[-1]] = at[name]
    return name


def check_pods(overlay, documents):
    named = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    for one in documents:
        if one["kind"] not in ("StatefulSet", "Deployment"):
            continue
        name, spec = one["metadata"]["name"], one["spec"]["template"]["spec"]
        labels = one["spec"]["template"]["metadata"]["labels"]
        need(one["spec"]["selector"]["matchLabels"].items() <= labels.items(), f"{overlay}: {name} selects its own pods")
        need(spec["securityContext"]["runAsNonRoot"], f"{overlay}: {name} does not run as root")
        for volume in spec["volumes"]:
            if "configMap" in volume:
                need(("ConfigMap", volume["configMap"]["name"]) in named, f"{overlay}: {name} has its settings")
            if "secret" in volume:
                need(volume["secret"]["secretName"] in SECRETS, f"{overlay}: {volume} is a secret that somebody makes")
        for container in spec["containers"]:
            secured = container["securityContext"]
            need(secured["readOnlyRootFilesystem"] and not secured["allowPrivilegeEscalation"], f"{overlay}: {name} writes its volumes alone")
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                need(container.get(probe, {}).get("httpGet", {}).get("port", "health") in ports, f"{overlay}: {name}'s {probe} asks a port it has")
            for source in container.get("envFrom", []):
                need(source["secretRef"]["name"] in SECRETS, f"{overlay}: {source} is a secret that somebody makes")
            sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            if one["kind"] == "StatefulSet" and one["spec"]["replicas"] > 1:
                need(sleep >= DEADLINE_SECONDS, f"{overlay}: the longest answer ends before SIGTERM")
            need(spec["terminationGracePeriodSeconds"] >= sleep + NODE_END_SECONDS, f"{overlay}: {name} has time to end")
    pods = [one["spec"]["template"]["metadata"]["labels"] for one in documents if "template" in one.get("spec", {})]
    for one in documents:
        selector = {
            "Service": lambda spec: spec["selector"], "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        }.get(one["kind"])
        if selector:
            chosen = selector(one["spec"])
            need(any(chosen.items() <= labels.items() for labels in pods), f"{overlay}: {one['kind']} {one['metadata']['name']} finds its pods")


def settings_of(documents):
    for one in documents:
        if one["kind"] == "ConfigMap" and "ragstone.toml" in one["data"]:
            return one["data"]["ragstone.toml"]
    return sys.exit("NOT SO: there are settings")


def check_settings(overlay, text, ragstone):
    """As far as TOML goes; with the program, as it reads them."""
    settings = tomllib.loads(text)
    need(settings["health_listen"].endswith(":7412") and settings["listen"].endswith(":7411"), f"{overlay}: nodes listen where they are asked")
    if not ragstone:
        return
    known = subprocess.run([ragstone, "settings", "--json"], check=True, capture_output=True, text=True).stdout
    for name in [name for name in settings if f'"{name}"' not in known]:
        print(f"  skipped: this program does not know the setting {name}")
        text = re.sub(rf"^{name} = .*\n", "", text, flags=re.MULTILINE)
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        read = subprocess.run([ragstone, "settings", "--config", file.name], capture_output=True, text=True)
    need(read.returncode == 0, f"{overlay}: the program reads its settings: {read.stderr}")


def check_front(documents):
    """HAProxy knows the nodes' names, and where each listens."""
    [nodes] = [one for one in documents if one["kind"] == "StatefulSet"]
    text = (HERE / "haproxy.cfg").read_text(encoding="utf-8")
    given = {one["data"]["haproxy.cfg"] for one in documents if one["kind"] == "ConfigMap" and "haproxy.cfg" in one["data"]}
    need(given == {text}, "the overlay has the file that was tried")
    service = nodes["spec"]["serviceName"]
    for number in range(nodes["spec"]["replicas"]):
        name = f"{nodes['metadata']['name']}-{number}"
        need(f"server {name} {name}.{service}:7411\n" in text, f"haproxy.cfg knows {name}")
    for port in re.findall(r"^    bind :(\d+)", text, flags=re.MULTILINE):
        [front] = [one for one in documents if one["kind"] == "Deployment"]
        ports = [port["containerPort"] for port in front["spec"]["template"]["spec"]["containers"][0]["ports"]]
        need(int(port) in ports, f"the front's port {port} is a port of its container")


def check_policies(documents):
    """What kustomize does to labels must not part the front from the nodes."""
    pods = {one["kind"]: one["spec"]["template"]["metadata"]["labels"] for one in documents if one["kind"] in ("StatefulSet", "Deployment")}
    nodes, front = pods["StatefulSet"], pods["Deployment"]

    def lets(direction, peers, own, other):
        for one in documents:
            if one["kind"] == "NetworkPolicy" and one["spec"]["podSelector"]["matchLabels"].items() <= own.items():
                named = [peer["podSelector"]["matchLabels"] for rule in one["spec"][direction] for peer in rule.get(peers, []) if "podSelector" in peer]
                return any(labels.items() <= other.items() for labels in named)
        return False

    need(lets("ingress", "from", nodes, front), "nodes let the front in")
    need(lets("egress", "to", front, nodes), "the front may ask nodes")


def check_compose():
    compose = yaml.safe_load((HERE / "compose.yaml").read_text(encoding="utf-8"))
    services, volumes = compose["services"], compose["volumes"]
    front = (HERE / "haproxy.cfg").read_text(encoding="utf-8")
    for name, service in services.items():
        need(set(service.get("depends_on", {})) <= set(services), f"compose: what {name} waits for is there")
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            there = source in volumes or source.startswith("./secrets/") or (HERE / source).is_file()
            need(there, f"compose: {name}'s {source} is there")
        for alias in service.get("networks", {}).get("default", {}).get("aliases", []):
            need(f" {alias}:7411\n" in front, f"compose: haproxy.cfg knows {alias}")
    command = ["docker", "compose"]
    if shutil.which("docker") and subprocess.run([*command, "version"], capture_output=True).returncode == 0:
        subprocess.run([*command, "-f", str(HERE / "compose.yaml"), "config"], check=True, stdout=subprocess.DEVNULL)
        return "as `docker compose config` reads it"
    return "names and files; no `docker compose` here that reads it"


def main():
    ragstone = sys.argv[1] if len(sys.argv) > 1 else None
    for overlay in ("base", "haproxy", "single"):
        documents = rendered(overlay)
        for document in documents:
            title = f"{overlay}: {document['kind']} {document['metadata']['name']}"
            for version in VERSIONS:
                told = is_valid(document, version)
                need(told is True, f"{title} is valid in Kubernetes {version}: {told}")
            if "spec" in document:
                wrong = copy.deepcopy(document)
                field = misspelt(wrong)
                need(is_valid(wrong, VERSIONS[0]) is not True, f"{title}: a misspelt {field} is refused")
        check_pods(overlay, documents)
        check_settings(overlay, settings_of(documents), ragstone)
        print(f"  {overlay}: {len(documents)} objects valid in Kubernetes {', '.join(VERSIONS)}; a misspelt field of each is refused")
    check_front(rendered("haproxy"))
    check_policies(rendered("haproxy"))
    print(f"  compose: {check_compose()}")


if __name__ == "__main__":
    main()
