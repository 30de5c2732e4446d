"""Out to other tools and back: a network as ONNX, its questions as VNNLIB, decided from the files alone.

python examples/onnx_and_vnnlib.py
"""

import torch

import lipgraft as lg

EPS, EPOCHS, IMAGES = 0.03, 5, 4


def main() -> None:
    torch.manual_seed(0)
    data = lg.data.load("digits")
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10))
    lg.train(model, data, lg.TrainSettings(epochs=EPOCHS, batch=64, eps=EPS), device="cpu")

    lg.save(model, "net.onnx", input_shape=data.input_shape)
    again = lg.load("net.onnx")  # compared with onnxruntime before it is returned
    x, y = lg.data.images(data.x_test[:IMAGES]), data.y_test[:IMAGES]
    print("largest difference:", (again(x) - model(x)).abs().max().item())

    bundle = lg.interop.export_bundle(again, x, y, EPS, "exported")  # also a configuration for alpha-beta-CROWN
    for question in bundle.properties:
        answer = lg.interop.verify_vnnlib(bundle.network, question, 20.0)
        print(question.name, answer.status, "- proved" if answer.status == "unsat" else "")


if __name__ == "__main__":
    main()
