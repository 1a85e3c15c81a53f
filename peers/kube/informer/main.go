// A plain client-go program: a shared informer that lists by WatchList, and writes that go out as protobuf.
// It prints one line per event and action; the test reads them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "path of the kubeconfig")
	namespace := flag.String("namespace", "default", "where to work")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	must(err)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()

	groups, err := memory.NewMemCacheClient(client.Discovery()).ServerGroups()
	must(err)
	fmt.Println("groups", len(groups.Groups) > 10)

	secrets := client.CoreV1().Secrets(*namespace)
	_, err = secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "watched", Labels: map[string]string{"a": "b"}},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{"key": {0, 1, 2, 255}},
	}, metav1.CreateOptions{})
	must(err)

	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(*namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", "watched").String()
		}))
	seen := make(chan string, 100)
	informer := factory.Core().V1().Secrets().Informer()
	informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { seen <- "added " + string(o.(*corev1.Secret).Name) },
		UpdateFunc: func(_, o any) {
			seen <- fmt.Sprintf("updated %s %x", o.(*corev1.Secret).Name, o.(*corev1.Secret).Data["key"])
		},
		DeleteFunc: func(o any) { seen <- "deleted " + o.(*corev1.Secret).Name },
	})
	factory.Start(ctx.Done())
	must(waitFor(cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)))
	fmt.Println(next(ctx, seen))

	found, err := secrets.Get(ctx, "watched", metav1.GetOptions{})
	must(err)
	found.Data["key"] = []byte{254}
	_, err = secrets.Update(ctx, found, metav1.UpdateOptions{})
	must(err)
	fmt.Println(next(ctx, seen))
	found.Data["key"] = []byte{7}
	_, err = secrets.Update(ctx, found, metav1.UpdateOptions{})
	fmt.Println("stale update refused", err != nil)
	must(secrets.Delete(ctx, "watched", metav1.DeleteOptions{}))
	fmt.Println(next(ctx, seen))

	seconds := int32(30)
	holder := "me"
	now := metav1.NowMicro()
	_, err = client.CoordinationV1().Leases(*namespace).Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "lease"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}, metav1.CreateOptions{})
	must(err)
	_, err = client.RbacV1().Roles(*namespace).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "role-"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	}, metav1.CreateOptions{})
	must(err)
	job, err := client.BatchV1().Jobs(*namespace).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "c", Image: "nothing:1", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
			}}},
		}}},
	}, metav1.CreateOptions{DryRun: []string{"All"}})
	must(err)
	fmt.Println("job", job.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().String(), *job.Spec.BackoffLimit)
	list, err := secrets.List(ctx, metav1.ListOptions{Limit: 1})
	must(err)
	fmt.Println("list", len(list.Items) <= 1, list.ResourceVersion != "")
	fmt.Println("done")
}

func next(ctx context.Context, seen chan string) string {
	select {
	case line := <-seen:
		return line
	case <-ctx.Done():
		return "nothing came"
	}
}

func waitFor(ok bool) error {
	if !ok {
		return fmt.Errorf("the informer did not sync")
	}
	return nil
}

func must(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}
