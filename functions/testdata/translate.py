"""Translates SAM templates as a deployment does and prints the results.

    python3 translate.py FILE...    prints a JSON list with one entry a file:
                                    {"template": …} or {"error": "…"}

Nothing is looked up: the one managed policy that SAM adds has its ARN here.
"""

import json
import os
import sys

os.environ.setdefault("AWS_DEFAULT_REGION", "eu-central-1")

from cfnlint.decode import cfn_yaml
from samtranslator.translator.transform import transform


class Policies:
    def load(self):
        return {"AWSLambdaBasicExecutionRole": "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"}


out = []
for name in sys.argv[1:]:
    try:
        template = cfn_yaml.load(name)
        for resource in template["Resources"].values():
            if resource["Type"] == "AWS::Serverless::Function":
                resource["Properties"]["CodeUri"] = "s3://bucket/key"  # as after the upload
        out.append({"template": transform(template, {"Revision": "0123456789abcdef"}, Policies())})
    except Exception as e:  # the test says which file and why
        out.append({"error": f"{type(e).__name__}: {e}"})
json.dump(out, sys.stdout)
